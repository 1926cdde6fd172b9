// Package rival runs servers to be measured side by side, each alone on this machine, and reads the resources they use.
package rival
