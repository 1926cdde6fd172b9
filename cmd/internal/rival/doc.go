// Package rival runs servers to be measured side by side, each alone on this machine, and reads what they spend.
package rival
