package record

import (
	"strconv"
	"strings"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Options say how one record is to be read. The topic's settings fill them, headers change a copy.
// Order of precedence: the header format, then content-type, then the topic's setting; a header's table before the topic's.
type Options struct {
	Format    Format
	Packing   Packing
	Table     string // not checked here
	Precision Precision

	// Atomic keeps nothing of a record that has a bad row.
	Atomic bool
	// Smear is the record's wish: its rows may wait in staging, or must not. Decode does not set it in the batch, as
	// its rows may be of many records.
	Smear Smear

	explicit bool // header format was seen, it outranks content-type
	named    bool // a header named the table, which outranks the topic's
}

// Smear is point.Smear as settings and headers write it: on, off, or nothing.
type Smear point.Smear

const (
	SmearByTable = Smear(point.SmearByTable)
	SmearOff     = Smear(point.SmearOff)
	SmearOn      = Smear(point.SmearOn)
)

// Names of headers, in lower case; senders may write them as they like. Tables are named as over HTTP.
const (
	headerFormat      = "format"
	headerContentType = "content-type"
	headerEncoding    = "content-encoding"
	headerPrecision   = "precision"
	headerAtomic      = "atomic"
)

// Header applies one header of a record. Unknown headers are ignored. The error is Invalid.
func (o *Options) Header(key string, value []byte) (err error) {
	// The longest name that is looked at: others are not even made small.
	if len(key) > len("x-spillway-precision") {
		return nil
	}
	switch strings.ToLower(key) {
	case headerFormat, "x-spillway-format":
		o.Format, err = ParseFormat(string(value))
		o.explicit = true
	case headerContentType:
		// Headers come in the sender's order, so format may have been seen before.
		if !o.explicit {
			o.Format, err = o.Format.ofContentType(string(value))
		}
	case headerEncoding:
		o.Packing, err = ParsePacking(string(value))
	case "table", "db", "bucket", "tenant", "x-spillway-table", "x-scope-orgid":
		err = o.table(string(value))
	case headerPrecision, "x-spillway-precision":
		o.Precision, err = ParsePrecision(string(value))
	case headerAtomic:
		if o.Atomic, err = strconv.ParseBool(string(value)); err != nil {
			err = fault.Errorf(fault.Invalid, "header atomic %q is neither true nor false", cut(string(value)))
		}
	case "smear", "x-spillway-smear":
		var wish Smear
		wish, err = ParseSmear(string(value))
		o.Smear = Smear(point.Smear(o.Smear).Over(point.Smear(wish)))
	}
	return err
}

// table reads the table that a header names. Headers may repeat it, and must not contradict each other.
func (o *Options) table(name string) error {
	if o.named && o.Table != name {
		return fault.Errorf(fault.Invalid, "the headers name two tables, %q and %q", cut(o.Table), cut(name))
	}
	o.Table, o.named = name, true
	return nil
}

// ParseSmear reads on and off, or a boolean. The error is Invalid.
func ParseSmear(s string) (Smear, error) {
	wish, err := point.ParseSmear(s)
	return Smear(wish), err
}

// UnmarshalText reads a wish in settings.
func (s *Smear) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSmear(string(text))
	return err
}

// MarshalText is the inverse of UnmarshalText.
func (s Smear) MarshalText() ([]byte, error) {
	return []byte([...]string{SmearByTable: "", SmearOff: "off", SmearOn: "on"}[s]), nil
}
