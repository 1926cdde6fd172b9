// Package use has a fault of each kind.
package use

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/ioutil" // want SA1019
	"os"
	"strings"
	"sync"
	"time"

	"example.com/faults/say"
)

type guarded struct {
	mu   sync.Mutex // want U1000
	n    int
	idle string // want U1000
}

type tagged struct {
	A int `json:"a` // want structtag
}

type box[T any] struct {
	v    T
	left T // want U1000
}

func (b *box[T]) get() T { return b.v }

// Boxed uses an instance.
func Boxed() int { return (&box[int]{}).get() }

func never() {} // want U1000

func byTests() {}

const unusedConst = 1 // want U1000

// Facts of the package say, which are faults here.
func Facts() error {
	say.Old()     // want SA1019
	say.Sum(1, 2) // want SA4017
	if err := say.Never(); err != nil {
		return errors.New(say.Line("%d", "x")) // want printf
	}
	if err := say.Maybe(true); err != nil {
		return err
	}
	return nil
}

// Ended uses a value that is nil unless it ended.
func Ended(g *guarded) int {
	if g == nil {
		say.End()
	}
	return g.n
}

// EndedByLog is as Ended.
func EndedByLog(g *guarded) int {
	if g == nil {
		say.Ends("nil")
	}
	return g.n
}

// Nil uses what may be nil.
func Nil(g *guarded) int {
	if g == nil {
		fmt.Println("nil")
	}
	return g.n
}

// Copies copies a lock.
func Copies(g guarded) { fmt.Println(g.n) } // want copylocks

// Leaks leaks a context.
func Leaks() context.Context {
	ctx, _ := context.WithCancel(context.Background()) // want lostcancel
	return ctx
}

// Many has the rest.
func Many(w *os.File, x int, t tagged) error {
	x = x                          // want SA4018 assign
	fmt.Sprintf("%d", 1)           // want SA4017 unusedresult
	fmt.Printf("%s\n", x)          // want SA5009 printf
	if strings.Title("a") == "A" { // want SA1019
		ioutil.ReadAll(w)
	}
	var f *say.Fault
	if errors.As(nil, f) { // want errorsas
		return errors.New("Capital.") // want ST1005
	}
	err := json.Unmarshal(nil, t) // want SA1014 SA4006 unmarshal
	err = w.Close()               // want SA4006
	for {                         // want S1000
		select { // want S1037
		case <-time.After(1):
		}
	}
	return err // want unreachable
}

// Slices has what staticcheck's S checks find.
func Slices(a, b []int, s string) bool {
	for _, x := range b { // want S1011
		a = append(a, x)
	}
	if strings.Index(s, "x") != -1 == true { // want S1002 S1003
		return true
	}
	time.Sleep(5) // want SA1004
	var m map[string]int
	m["a"] = 1                             // want SA5000
	return time.Now().Sub(time.Time{}) > 1 // want S1012
}
