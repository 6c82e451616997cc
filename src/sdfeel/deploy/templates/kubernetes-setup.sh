#!/bin/sh
# Gives a cluster what the manifests refer to. Run it in the directory that `deploy init` wrote.
set -eu
kubectl create configmap sdfeel-shared \
  --from-file=experiment.toml --from-file=network.json
# To revoke later: the same with `--dry-run=client -o yaml | kubectl apply -f -`.
kubectl create configmap sdfeel-trust --from-file=trust/allow.txt
for home in nodes/edge-* nodes/client-*; do
  name=$(basename "$home")
  kubectl create configmap "$name-node" --from-file="$home/node.toml"
  kubectl create secret generic "$name-identity" --from-file="$home/identity"
done
kubectl apply -f kubernetes.yaml
