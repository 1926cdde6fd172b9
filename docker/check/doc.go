// Package check tests the Helm chart in docker/helm and the files of Docker Compose. The tests need Helm, the types of Kubernetes and the
// library of Compose, which the product does not, so they are a module of their own, which `make test-helm` runs.
package check
