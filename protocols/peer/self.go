package peer

// Self identifies the process that answers at an address: a wrong address, or another server's, is noticed by it.
type Self struct {
	Server  string // its name in partition maps
	Store   string // its store directory
	Process string // made up when it started: no other process has it
}

// Unreached is a server that another one does not reach at its address.
type Unreached struct {
	Server string
	Why    string // the last error
}
