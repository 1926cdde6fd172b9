package mem_test

import (
	"testing"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/coordtest"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
)

func TestConformance(t *testing.T) {
	coordtest.Run(t, func(*testing.T) coord.Store { return mem.New() })
}
