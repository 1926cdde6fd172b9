// Package standalonetest tests one real process from outside: by its HTTP API, its commands, its exit codes and its log, on disks that are full
// or fail, with the limits of its operating system, and with every line that the documents for users show.
package standalonetest
