// Package pages finds the configuration and the commands that the documents for users show, so that tests hold each block against the program
// that reads it, and run each command.
//
// Its own test has Prometheus' library read the blocks for Prometheus, and a reader of TOML those for Telegraf; the tests of cmd/spillway and cmd/standalonetest have the
// program check its settings, tokens and web-config.
package pages
