package main

import (
	"github.com/spillwaydb/spillway/cmd/spillway/connect"
	"github.com/spillwaydb/spillway/cmd/spillway/credentials"
)

// The shorter names that tests of a cluster use.

type (
	coordConfig = connect.Coord
	peerConfig  = connect.Peer
)

// certsCmd are credentials.Certs.
type certsCmd credentials.Certs

func (c *certsCmd) make() ([]string, error) { return (*credentials.Certs)(c).Make() }

func (c *certsCmd) Run() error { return (*credentials.Certs)(c).Run() }
