package main

import "github.com/spillwaydb/spillway/cmd/spillway/credentials"

// certsCmd are credentials.Certs, by the shorter names that tests of a cluster use.
type certsCmd credentials.Certs

func (c *certsCmd) make() ([]string, error) { return (*credentials.Certs)(c).Make() }

func (c *certsCmd) Run() error { return (*credentials.Certs)(c).Run() }
