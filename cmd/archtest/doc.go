// Package archtest holds the laws of this repository as tests: the allowed imports, the duties of a package towards its
// reader, and the state that no package may keep.
//
//	imports_test.go   which package may import which, and why
//	uses_test.go      which functions are called where, and why
//	state_test.go     no init, no variable of a package that changes
//	program_test.go   what the product is built without, and how large it may be
//	settings_test.go  each setting is read by more than what checks it
//	form_test.go      promises of packages, length of files, names at the top, formats, metrics
//	words_test.go     how often words stand in comments for which there are plainer ones
//	references_test.go  what comments refer to is in the repository
//	race_test.go      packages with concurrency are tested under the race detector
//	variables_test.go environment variables that tests read are listed
//
// Each law is a list one can read, and each line gives its reason. A law that gets in the way is changed
// here, in the open, with a new reason. Every check is itself tested against a planted violation.
package archtest
