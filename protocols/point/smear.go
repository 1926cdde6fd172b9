package point

import (
	"strings"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Smear is the wish of the sender of rows: whether they may wait in staging on their way (C41). The zero Smear leaves it to
// the table. It is no permission to lose or hide anything (I9), only to be late at the partition.
type Smear uint8

const (
	SmearByTable Smear = iota
	SmearOff
	SmearOn
	// SmearWaited is no wish: the rows waited in their topic until they were due, and are forwarded at once.
	SmearWaited
)

// ParseSmear reads on and off, a boolean, or nothing. The error is Invalid.
func ParseSmear(s string) (Smear, error) {
	switch strings.ToLower(s) {
	case "":
		return SmearByTable, nil
	case "on", "true", "1":
		return SmearOn, nil
	case "off", "false", "0":
		return SmearOff, nil
	}
	return 0, fault.Errorf(fault.Invalid, "smear %.100q is neither on nor off", s)
}

// Over is the wish of a sender whose first word was s and the next is o. Off stays.
func (s Smear) Over(o Smear) Smear {
	if s == SmearOff || o == SmearByTable {
		return s
	}
	return o
}

// With is the combined wish of rows that are written together. Off wins over all, on needs both.
func (s Smear) With(o Smear) Smear {
	switch {
	case s == SmearOff || o == SmearOff:
		return SmearOff
	case s == o:
		return s
	}
	return SmearByTable
}
