// Package client has the commands that call a running process over HTTP and need nothing else: query, tail and health. Every other command
// that calls a process does it with the same flags, Flags and Server.
package client
