package main

import (
	"slices"
	"strings"
	"testing"
)

// brokenChains are rules of the copies that are left out, as in broken: in lives in which all tables have copies.
var brokenChains = []struct {
	rule   rule
	faults faults
	copies int
	says   string // how the broken promise begins; one of several
	lives  int
	from   uint64 // the first seed
}{
	{ackedByHead, allFaults, 3, "I1", 20, 1},
	{reportsUnsynced, allFaults, 3, "I1", 50, 1},
	{epochNotRaised, allFaults, 3, "I3", 20, 1},
	{surplusStays, allFaults, 3, "I6", 100, 1},
	{gapsTaken, allFaults, 3, "I6", 50, 1},
	{listUnanswered, allFaults, 3, "I1|not whole", 100, 1},
	{shrinksToOne, allFaults, 3, "I1", 50, 1},
	{sameDirectory, lost | crash, 3, "I", 100, 1},
	{flushesUnacked, allFaults, 3, "I6", 50, 1},
	{damageAdopted, allFaults, 3, "I4", 50, 1},
	// Not whole where the torn frame is the last, which all others have whole; H where a read meets the lack of its rows first.
	{tornTaken, torn | crash, 3, "I|H|not whole", 100, 1},
}

// TestBrokenRulesOfChainsAreSeen is TestBrokenRulesAreSeen for the rules of copies.
func TestBrokenRulesOfChainsAreSeen(t *testing.T) {
	for _, b := range brokenChains {
		t.Run(string(b.rule), func(t *testing.T) {
			for seed := range uint64(b.lives) {
				o := options(b.from+seed, 20_000)
				o.broken, o.Faults, o.Copies = b.rule, b.faults, b.copies
				if r := Run(o, nil); r.Broken != "" {
					if !slices.ContainsFunc(strings.Split(b.says, "|"), func(says string) bool { return strings.HasPrefix(r.Broken, says) }) {
						t.Errorf("seed %d: %s, but not as %s", o.Seed, r.Broken, b.says)
					}
					t.Logf("seed %d, event %d: %s", o.Seed, r.Events, r.Broken)
					return
				}
			}
			t.Errorf("%d lives, and nobody noticed", b.lives)
		})
	}
}
