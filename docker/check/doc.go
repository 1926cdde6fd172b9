// Package check tests the Helm chart in docker/helm. They need Helm and the types of Kubernetes, which the
// product does not, so they are a module of their own, which `make test-helm` runs.
package check
