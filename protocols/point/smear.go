package point

// Smear is the wish of the sender of rows: whether they may wait in staging on their way (C41). The zero Smear leaves it to
// the table. It is no permission to lose or hide anything (I9), only to be late at the partition.
type Smear uint8

const (
	SmearByTable Smear = iota
	SmearOff
	SmearOn
)

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
