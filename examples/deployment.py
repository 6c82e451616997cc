"""The same experiment, simulated and as real processes with certificates: the model is the same.

Needs `pip install 'sdfeel[deploy]'`. For real machines see `sdfeel deploy init --help`.
"""

import json
import subprocess
import sys

import sdfeel

settings = "network.clients=4 network.servers=2 data.classes_per_client=5 model.name=logistic"
settings += " training.iterations=10 training.engine=loop"
experiment = sdfeel.load(None, settings.split())
with open("federation.toml", "w") as file:
    file.write(experiment.text())

*_, simulated = sdfeel.Run(experiment)
command = [sys.executable, "-m", "sdfeel", "deploy", "local", "federation.toml", "--out", "real"]
done = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True)
deployed = json.loads(done.stdout)
print(f"simulated {simulated.model_sha256[:16]} in {simulated.seconds:.3f} virtual seconds")
print(
    f"deployed  {deployed['model_sha256'][:16]} in {deployed['virtual_seconds']:.3f} real seconds"
)
assert deployed["model_sha256"] == simulated.model_sha256
