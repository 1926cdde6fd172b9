// Package terminal has what commands for people share: exit codes, and how times and spans are written on a command line.
package terminal
