// Package say exports facts to the package use.
package say

import (
	"errors"
	"fmt"
	"log"
	"os"
)

// Line formats as Printf does.
func Line(format string, args ...any) string { return fmt.Sprintf(format, args...) }

// Old is old.
//
// Deprecated: use Line.
func Old() {}

// Sum is pure.
func Sum(a, b int) int { return a + b }

// End never returns.
func End() { os.Exit(1) }

// Ends never returns either, by a package that imports it.
func Ends(why string) { log.Fatal(why) }

// Never returns an error that is never nil.
func Never() error { return new(Fault) }

// Maybe returns one that may be.
func Maybe(b bool) error {
	if b {
		return errors.New("b")
	}
	return nil
}

// Fault is an error.
type Fault struct{}

func (*Fault) Error() string { return "a fault" }
