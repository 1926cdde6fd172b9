package main

import (
	"testing"
)

// brokenChains are rules of the copies that are left out, as in broken: in runs in which all tables have copies.
var brokenChains = []brokenRule{
	{rule: ackedByHead, faults: allFaults, copies: 3, says: "I1", runs: 20, from: 1},
	{rule: reportsUnsynced, faults: allFaults, copies: 3, says: "I1", runs: 50, from: 1},
	{rule: epochNotRaised, faults: allFaults, copies: 3, says: "I3", runs: 20, from: 1},
	{rule: surplusStays, faults: allFaults, copies: 3, says: "I6|not whole", runs: 100, from: 2},
	{rule: surplusWins, faults: allFaults, copies: 3, says: "I|H|not whole", runs: 100, from: 3},
	{rule: gapsTaken, faults: allFaults, copies: 3, says: "I6", runs: 50, from: 1},
	{rule: listUnanswered, faults: allFaults, copies: 3, says: "I1|not whole", runs: 100, from: 1},
	{rule: shrinksToOne, faults: allFaults, copies: 3, says: "I1", runs: 50, from: 1},
	{rule: lowersAtOnce, faults: allFaults, copies: 3, says: "I1", runs: 200, from: 11},
	{rule: sameDirectory, faults: lost | crash, copies: 3, says: "I", runs: 100, from: 1},
	{rule: flushesUnacked, faults: allFaults, copies: 3, says: "I6", runs: 50, from: 1},
	{rule: damageAdopted, faults: allFaults, copies: 3, says: "I4", runs: 50, from: 1},
	// Not whole where the torn frame is the last, which all others have whole; H where a read meets the lack of its rows first.
	{rule: tornTaken, faults: torn | crash, copies: 3, says: "I|H|not whole", runs: 100, from: 123},
}

// TestBrokenRulesOfChainsAreSeen is TestBrokenRulesAreSeen for the rules of copies.
func TestBrokenRulesOfChainsAreSeen(t *testing.T) {
	for _, b := range brokenChains {
		t.Run(string(b.rule), func(t *testing.T) { t.Parallel(); b.seen(t, 20_000) })
	}
}
