package admit

import (
	"errors"
	"fmt"
	"time"
)

// Settings are the limits every batch is held against.
type Settings struct {
	// FutureMax is how far ahead of the gateway's clock a row may be, the latest that is possible where that is in doubt (clock.Reading). Default 10 min, as in Prometheus. Larger: a sender
	// with a wrong clock fills future partitions, which no query reads, for longer.
	FutureMax time.Duration

	// PastMax is how far behind the gateway's clock a row may be, besides the table's own bounds. Default 0: as far as
	// those let it.
	PastMax time.Duration

	// RowsMax is the number of float and histogram rows one request may hold. Default 5,000,000. A row needs 20 bytes
	// while it is on its way.
	RowsMax int
}

// Default limits.
const (
	FutureMaxDefault = 10 * time.Minute
	RowsMaxDefault   = 5_000_000
)

// SetDefaults fills the fields that are zero.
func (s *Settings) SetDefaults() {
	if s.FutureMax == 0 {
		s.FutureMax = FutureMaxDefault
	}
	if s.RowsMax == 0 {
		s.RowsMax = RowsMaxDefault
	}
}

// Validate reports every mistake at once.
func (s *Settings) Validate() error {
	var errs []error
	if s.FutureMax < 0 {
		errs = append(errs, fmt.Errorf("FutureMax %v is negative", s.FutureMax))
	}
	if s.RowsMax < 0 {
		errs = append(errs, fmt.Errorf("RowsMax %d is negative", s.RowsMax))
	}
	return errors.Join(errs...)
}
