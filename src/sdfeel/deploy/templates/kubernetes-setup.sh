#!/bin/sh
# Creates the config maps and secrets that the manifests refer to. Run it in the directory that
# `deploy init` wrote, and again after certificates or the network have changed: running nodes read
# the new files.
# Then: kubectl apply -f kubernetes.yaml, or: helm install federation ./helm
set -eu
give() {
  kubectl create "$@" --dry-run=client -o yaml | kubectl apply -f -
}
give configmap sdfeel-shared --from-file=experiment.toml --from-file=network.json
give configmap sdfeel-trust --from-file=trust/allow.txt
give configmap sdfeel-epochs --from-file=epochs
for home in nodes/edge-* nodes/client-*; do
  name=$(basename "$home")
  give configmap "$name-node" --from-file="$home/node.toml"
  give secret generic "$name-identity" --from-file="$home/identity"
done
