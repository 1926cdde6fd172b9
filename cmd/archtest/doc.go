// Package archtest holds the laws of this repository as tests: who may import whom, what a package owes its reader, and
// what no package may keep to itself.
//
//	imports_test.go   who may import whom, and why
//	uses_test.go      which functions are called where, and why
//	state_test.go     no init, no variable of a package that changes
//	form_test.go      promises of packages, length of files, names at the top, formats, metrics
//
// Each law is a list one can read, and each line of it says because of what. A law that gets in the way is changed
// here, in the open, with a new reason. Every check is itself tested against a planted violation.
package archtest
