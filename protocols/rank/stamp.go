package rank

import (
	"math"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

const (
	gatewayBits = 10

	// Step is the distance of two ranks of one gateway: one unit of time, 1.024 µs. A gateway that counts faster than real
	// time passes, some 976,000 ranks a second, runs ahead of it.
	Step = 1 << gatewayBits

	// Gateways is the number of gateway numbers. A gateway draws its own at random at every start. Two that draw the same
	// may give the same rank in the same microsecond. A leader raises one of two such frames, so that costs nothing where
	// they arrive together; where no common leader ordered them the greater bits of the value win.
	Gateways = 1 << gatewayBits

	// AheadMax is how far the rank of a direct insert may be ahead of the servers' clocks. Larger: a gateway with a wrong
	// clock keeps winning for longer where no common leader decides. Smaller: gateways with usual clocks are refused.
	AheadMax = time.Second
)

// top is the highest unit of time that a rank has.
const top = math.MaxUint64 &^ (Step - 1)

// At gives the rank of a moment, of gateway 0. Times before 1970 count as 1970.
func At(t point.Nanos) point.Stamp { return point.Stamp(max(t, 0)) &^ (Step - 1) }

// Time gives the moment of a rank; those after the year 2262 saturate.
func Time(s point.Stamp) point.Nanos { return int64(min(s&^(Step-1), math.MaxInt64)) }

// Ahead reports whether a direct insert of that rank is to be refused at a server where it is now.
func Ahead(s point.Stamp, now point.Nanos) bool {
	limit := max(now, 0)
	if limit > math.MaxInt64-int64(AheadMax) {
		return false
	}
	return s > point.Stamp(limit+int64(AheadMax))
}
