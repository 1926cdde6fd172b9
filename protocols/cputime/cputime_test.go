//go:build unix

package cputime_test

import (
	"testing"

	"github.com/spillwaydb/spillway/protocols/cputime"
)

func TestWorkUsesTime(t *testing.T) {
	before, sum := cputime.Used(), 0
	for i := 0; cputime.Used() == before; i++ { // it ends once the system counts the work
		sum += i
	}
	if cputime.Used() <= before {
		t.Errorf("%v, then %v", before, cputime.Used())
	}
}
