package main

import (
	"fmt"
	"slices"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// mark is a branch that a run should come through: a branch that no run reached was not tested.
type mark uint8

const (
	takenUnborn mark = iota
	takenFree
	takenSilent
	takenReplaced
	takenEmptyFromSilent
	letGo
	vacated
	bumped
	beatGone
	offline
	listChanged
	forgotten
	lapsed
	leadsAfterLapse
	wroteAlone
	holdFailed

	created
	presplit
	columns
	split
	splitAborted
	handedOver
	handOverFailed
	doubtResolved
	ruledOut
	unloaded
	rowsMoved
	sliceRefused
	sliceOfOtherLease
	endingWaits
	endingBesideOlder
	deletionAfterEnding
	deletionAfterTime
	droppedPartition
	joined
	removed
	serverJoined
	serverRemoved
	droppedTable
	droppedByAnother
	remadeTable

	removedDropped
	keptOnlyCopy
	sealedRefused
	fencedRow
	unconfirmedRow
	lateTry
	lateInsert
	rowStaged
	rowSmeared
	notStaged
	stagedForwarded
	stagedAgain
	stagedEnded
	stagingFull
	stagingRetracted
	stagingRenamed
	askedStaged
	rankRaised
	staleNext
	staleTaken
	staleHanding
	stalePlacement
	readTwoLayers
	rankDecided
	warnedIncomplete
	warnedOld

	fetchedFromPeer
	fetchFailed
	sentWhole
	tooMuchUndecided
	sweptAbandoned
	historyLooked
	swapUnknown
	answeredStale
	answeredInvalid
	watchListsAnew

	tornCut
	rowDamageRead
	rowDamageScrubbed
	rowDamageAtStart
	fileDamageRead
	fileDamageAtStart
	rowsRepaired
	fsyncFailed
	writeOnFull

	movedUnborn
	movedEmpty
	moveConflict
	moveUnknown
	askedEarly
	coreWhole

	becameMaster
	masterNoMore
	masterLostAtWork
	drained
	fenceLeftBehind
	stepDrop
	stepRetention
	stepAhead
	stepRepair
	stepDrain
	stepSplit
	stepMerge
	stepBalance
	stepEven
	stepLead
	stepMetadata
	stepSweep
	mergedUnborn

	chainLed
	chainOvertaken
	chainRests
	chainWakes
	chainGivesUp
	chainUnmapped
	chainRefuses
	chainStalls
	chainBehind
	copyMade
	memberSilent
	memberSlow
	memberSlowDisk
	memberUnreached
	memberUnmapped
	memberTakenIn
	surplusCut
	surplusHandedOver
	tornFrame
	frameNotLogged
	tooFewLive
	segmentFlushed
	segmentCompacted
	segmentsFolded
	segmentsBelow
	segmentWaits
	segmentAdopted
	segmentsFill
	segmentsLevel
	segmentDeclined
	segmentDamaged
	segmentSuspect

	storeRestored
	tableRepaired
	repairedByHand
	ranThroughRestore
	upgraded
	roundMissing
	rankMissing
	marksEnd
)

var markNames = [...]string{
	takenUnborn: "a partition without a lease row is taken", takenFree: "a released one is taken", takenSilent: "one of a silent holder is taken",
	takenReplaced: "a new process takes what an earlier one on its directory led", takenEmptyFromSilent: "an empty one is taken by another placement of the list",
	letGo: "a lease is released", vacated: "a list is taken out of a row", bumped: "bumped", beatGone: "a heartbeat row is deleted", offline: "taken offline", listChanged: "an in-sync list changes",
	forgotten: "a lease row is forgotten", lapsed: "a heartbeat lapses", leadsAfterLapse: "the same epoch leads again after a lapse", wroteAlone: "a row is acked without the store",
	holdFailed: "a first row finds the partition taken",
	created:    "partitions are made", presplit: "presplit", columns: "columns change", split: "a split begins", splitAborted: "a split is aborted", handedOver: "a split is handed over",
	handOverFailed: "a hand-over fails", doubtResolved: "a doubt is resolved by a newer map", ruledOut: "a doubt is ruled out in the coordination store", unloaded: "a partition is unloaded", rowsMoved: "all rows of a partition are in those that took over", droppedPartition: "a partition is dropped",
	sliceRefused: "a slice of an earlier leader is refused", sliceOfOtherLease: "a slice names another lease of its heir", endingWaits: "the end of slices waits for one that is being inserted", endingBesideOlder: "slices are not ended beside a server of the older version",
	deletionAfterEnding: "a deletion begins once earlier slices are ended", deletionAfterTime: "a deletion begins once earlier slices are over by their time",
	joined: "a placement joins", removed: "a placement is removed", serverJoined: "a metadata server joins", serverRemoved: "a metadata server is removed",
	droppedTable: "a table is dropped", droppedByAnother: "a table drop that died is finished by another", remadeTable: "a table is made again",
	removedDropped: "a dropped copy is deleted", keptOnlyCopy: "an only copy is kept against the map",
	sealedRefused: "a sealed partition refuses a row", fencedRow: "the brick refuses an epoch", unconfirmedRow: "a logged row is not confirmed", lateTry: "a late try is refused", lateInsert: "an insert that was given up is refused",
	rowStaged: "a row is staged", rowSmeared: "a row is smeared", notStaged: "a row cannot be staged", stagedForwarded: "a staged row is forwarded", stagedAgain: "a frame is staged again elsewhere",
	stagedEnded: "a frame ends with its table", stagingFull: "a server has no room for a frame", stagingRetracted: "an announcement is taken back", stagingRenamed: "a holder keeps a new list of holders", askedStaged: "a reader asks for staged rows",
	rankRaised: "a rank is raised", staleNext: "a reader does not know a partition", staleTaken: "a reader does not know that others took over", staleHanding: "a reader meets a hand-over",
	stalePlacement: "a reader asks who does not lead", readTwoLayers: "parent and child are read", rankDecided: "a rank decides between two partitions",
	warnedIncomplete: "an answer says that it is incomplete", warnedOld: "an answer says that its map may be old",
	fetchedFromPeer: "a file is fetched", fetchFailed: "a file cannot be fetched", sentWhole: "a file is sent whole", tooMuchUndecided: "a server has too many undecided files",
	sweptAbandoned: "undecided files are swept", historyLooked: "the history is looked through", swapUnknown: "a swap is not answered", answeredStale: "a proposal is overtaken",
	answeredInvalid: "a proposal is refused", watchListsAnew: "a watch lists anew",
	tornCut: "a torn end is cut", rowDamageRead: "a read finds damage", rowDamageScrubbed: "a scrub finds damage", rowDamageAtStart: "a start finds damage",
	fileDamageRead: "a damaged file is noticed when it is read", fileDamageAtStart: "a damaged file is noticed at the start", rowsRepaired: "damaged rows are set aside",
	fsyncFailed: "an fsync fails", writeOnFull: "a write meets a full disk",
	coreWhole: "all but a dead server is whole", movedUnborn: "an unborn partition is moved", movedEmpty: "an empty one is moved", moveConflict: "a move finds another row", moveUnknown: "a move is not answered",
	askedEarly:   "a request comes for a partition of the future",
	becameMaster: "a server becomes master", masterNoMore: "a master is master no more", masterLostAtWork: "a master loses its row while it carries something out",
	drained: "a server is drained", fenceLeftBehind: "a fence that a master left behind is taken away",
	stepDrop: "the master: a drop is ended", stepRetention: "the master: retention drops", stepAhead: "the master: partitions are made ahead", stepRepair: "the master: a repair",
	stepDrain: "the master: a drain", stepSplit: "the master: a split", stepMerge: "the master: a merge", stepBalance: "the master: balance", stepEven: "the master: a partition with rows moves for balance", stepLead: "the master: a lead is handed over for its load", stepMetadata: "the master: metadata servers",
	stepSweep: "the master: lease rows are swept", mergedUnborn: "partitions that were never led are merged",
	chainLed: "a chain is led", chainOvertaken: "a head is overtaken", chainRests: "a chain is quiet", chainWakes: "a quiet chain wakes", chainGivesUp: "a head gives its lease up for a new epoch", chainUnmapped: "a chain is led by a placement that the map has no more", chainRefuses: "a head takes no rows", chainStalls: "rows wait for a copy that is away", chainBehind: "a copy is behind the log", copyMade: "a copy is made",
	memberSilent: "a silent member is taken out", memberSlow: "a slow member is taken out", memberSlowDisk: "a member on a slow disk is taken out", memberUnreached: "a member that no frame reaches is taken out", memberUnmapped: "a member that the map has no more is taken out", memberTakenIn: "a placement is taken into a chain", surplusCut: "surplus is set aside", surplusHandedOver: "surplus is handed over", tornFrame: "a torn frame is cut",
	frameNotLogged: "a member cannot log a frame", tooFewLive: "too few placements live for a first row",
	segmentFlushed: "a segment is made", segmentCompacted: "segments are compacted", segmentsFolded: "the newest segments become one minor", segmentsBelow: "a compaction is committed below a segment made meanwhile", segmentWaits: "a segment waits for those above it", segmentAdopted: "a segment is adopted", segmentsFill: "a segment brings frames that the log lacked",
	segmentsLevel: "a placement has all segments", segmentDeclined: "a segment is declined", segmentDamaged: "a segment comes damaged", segmentSuspect: "a segment comes damaged again and again",
	storeRestored: "the store is restored from a backup", tableRepaired: "a table is repaired", repairedByHand: "a person says which file was committed",
	ranThroughRestore: "a gateway runs on through a restore",
	upgraded:          "an older process is upgraded", roundMissing: "a proposal names no round", rankMissing: "a row comes without a rank",
}

// marks are how often each was met.
type marks [marksEnd]int

func (w *world) mark(m mark) { w.marks[m]++ }

// add sums the marks of several runs.
func (m *marks) add(o *marks) {
	for i := range m {
		m[i] += o[i]
	}
}

// missing lists the marks that were never met.
func (m *marks) missing() (names []string) {
	for i, n := range m {
		if m := mark(i); n == 0 && m != segmentSuspect && m != storeRestored && m != tableRepaired && m != repairedByHand && m != ranThroughRestore { // these need a fault that is not among all
			names = append(names, markNames[i])
		}
	}
	return names
}

// String lists all marks.
func (m *marks) String() (s string) {
	for i, n := range m {
		s += fmt.Sprintf("%9d  %s\n", n, markNames[i])
	}
	return s
}

// markLease marks the changes in a written lease row.
func (w *world) markLease(was lease.Lease, ever bool, row lease.Lease) {
	taken := row.State == lease.Held && (was.State != lease.Held || was.Boot != row.Boot || was.Epoch != row.Epoch)
	switch {
	case taken && !ever:
		w.mark(takenUnborn)
	case taken && was.State == lease.Free:
		w.mark(takenFree)
	case taken && was.Holder == row.Holder && was.Store == row.Store:
		w.mark(takenReplaced)
	case taken:
		w.mark(takenSilent)
		if was.Empty {
			w.mark(takenEmptyFromSilent)
		}
	case was.State == lease.Held && row.State == lease.Free:
		w.mark(letGo)
	}
	if ever && len(was.InSync) > 0 && row.Vacant() {
		w.mark(vacated)
	}
	if was.Offline == nil && row.Offline != nil {
		w.mark(offline)
	}
	if !taken && ever && len(row.InSync) > 0 && !slices.Equal(was.InSync, row.InSync) {
		w.mark(listChanged)
	}
}

// markOps marks the changes of a committed transaction.
func (w *world) markOps(ops []topology.Op) {
	for _, op := range ops {
		switch op.(type) {
		case topology.Create:
			w.mark(created)
		case topology.Presplit:
			w.mark(presplit)
		case topology.SetColumns:
			w.mark(columns)
		case topology.SplitBegin:
			w.mark(split)
		case topology.SplitAbort:
			w.mark(splitAborted)
		case topology.SplitFinalize:
			w.mark(handedOver)
		case topology.UnloadFinal:
			w.mark(unloaded)
		case topology.Drop:
			w.mark(droppedPartition)
		case topology.Join:
			w.mark(joined)
		case topology.Remove:
			w.mark(removed)
		}
	}
}

// kindMarks are the marks of the master's steps.
var kindMarks = map[master.Kind]mark{master.Drop: stepDrop, master.Retention: stepRetention, master.Ahead: stepAhead, master.Repair: stepRepair, master.Drain: stepDrain,
	master.Split: stepSplit, master.Merge: stepMerge, master.Balance: stepBalance, master.Lead: stepLead, master.Metadata: stepMetadata, master.Sweep: stepSweep}

// markStep marks a step that was carried out.
func (w *world) markStep(s master.Step) {
	w.n.steps++
	w.mark(kindMarks[s.Kind])
	w.noToAndFro(s)
	if s.Kind == master.Balance && len(s.Fences) == 0 {
		w.mark(stepEven)
	}
	for _, f := range s.Fences {
		led := w.check.listed[f.Partition].Epoch > 0
		switch s.Kind {
		case master.Merge:
			if !led {
				w.mark(mergedUnborn)
			}
		case master.Balance, master.Repair, master.Drain:
			w.n.moved++
			w.mark(map[bool]mark{true: movedEmpty, false: movedUnborn}[led])
		}
	}
}

// markServers marks changes of metadata servers.
func (w *world) markServers(was, now []topology.ServerID) {
	switch {
	case len(now) > len(was):
		w.mark(serverJoined)
	case len(now) < len(was):
		w.mark(serverRemoved)
	}
}

// turnsMax is how often copies of one partition may leave servers after all is well: some, because of drains and repairs that were under way, and of bytes and loads; more is to and fro.
const turnsMax = 6

// noToAndFro fails where copies of a partition are moved again and again although nothing else changes.
func (w *world) noToAndFro(s master.Step) {
	id := lease.Partition{Table: s.Table, ID: s.Partition}
	n := 0
	if s.Relief != nil && !s.Relief.End {
		w.n.reliefs++
	}
	for _, op := range s.Ops {
		if _, leaves := op.(topology.Unjoin); leaves {
			n++
		}
	}
	if !w.healed || n == 0 {
		return
	}
	if w.turns == nil {
		w.turns = map[lease.Partition]int{}
	}
	if w.turns[id] += n; w.turns[id] > turnsMax {
		w.fail("copies of %s go to and fro: %d left servers after all was well, the last one: %s: %s", id, w.turns[id], s.What, s.Why)
	}
}
