package use_test

import (
	"testing"

	"example.com/faults/use"
)

func TestOutside(t *testing.T) {
	defer func() { recover() }()
	if use.Boxed() == 0 {
		t.Logf("%s", 1) // want printf
	}
}

func outsideHelper() {} // want U1000
