package rpc

import "github.com/spillwaydb/spillway/protocols/peer"

// decode reads an insert's payload as a server does, but for the room that it books in between.
func (d *insertDecoder) decode(b []byte) (*peer.Insert, error) {
	rest, err := d.cutHead(b)
	if err != nil {
		return nil, err
	}
	return &d.in, d.decodeFrame(rest)
}

// decode reads the payload of a group likewise.
func (d *groupDecoder) decode(b []byte) ([]*peer.Insert, error) {
	rest, err := d.cutHead(b)
	if err != nil {
		return nil, err
	}
	return d.decodeMembers(rest)
}
