// Package grafana holds dashboards and provisioning for Grafana. Its tests hold every metric that a dashboard asks for
// against the list of metrics that the product is tested to have.
package grafana
