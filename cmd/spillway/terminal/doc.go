// Package terminal has what commands for people share: exit codes, how times and spans are written on a command line, and bars of progress.
package terminal
