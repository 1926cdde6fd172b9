// Package completion has the command completion: scripts for bash, zsh and fish, which complete the commands, flags and choices of a program.
//
// They are made of kong's model of the command line, so that a new command or flag is in them at once.
package completion
