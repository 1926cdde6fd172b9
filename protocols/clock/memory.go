package clock

import (
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

const (
	// NearMax is how far a clock may be from where it was last seen without a word: NTP sets clocks by seconds.
	NearMax = 10 * time.Minute
	// JumpMax is how far a clock may be ahead of where it was last seen, plus the time that passed since by a clock that is never set, and still be
	// believed: so long a host may be off. A clock that went further is believed once a person confirms it.
	JumpMax = 7 * 24 * time.Hour
	// StandFor is for how long a clock that went ahead must go on so before it is remembered: a host that boots in 2036 has the right time after a minute.
	StandFor = 10 * time.Minute
	// CorrectAfter is the number of rounds, of a minute each, with rows of about the machine's time and none of later ones, after which a clock that is behind
	// the remembered one is right: the remembered one was ahead.
	CorrectAfter = 60
)

// Memory is the clock that a process remembers: the latest that it believed, across starts. For one caller at a time; the zero Memory remembers nothing.
//
//	wall clock, compared with the remembered one
//	  within NearMax                 it is right: remembered
//	  ahead by up to JumpMax         remembered once it has stood for StandFor
//	  ahead by more                  not remembered, unless a person confirms it
//	  behind                         not remembered, until rows show for CorrectAfter rounds that senders agree with it
//	  before point.ClockFirst        it was never set: nothing follows
//
// The first clock of all is remembered at once, and forgotten without more ado if it goes back before it has stood for StandFor.
type Memory struct {
	at     int64 // the remembered clock minus the steady one
	known  bool
	firm   bool        // it stood for StandFor, or an earlier process remembered it
	met    bool        // the wall clock was near it in this process: no time passed unseen since
	read   bool        // the wall clock was, and was set
	wall   int64       // it minus the steady one, when it was last read
	stands point.Nanos // steady, since when it goes on as it does
	agree  int         // rounds in which rows were of about the machine's time
}

// Remembered makes the Memory of a process that starts, of Stored of an earlier one; 0: there was none.
func Remembered(stored, steady point.Nanos) Memory {
	if stored < point.ClockFirst { // a build from before remembered clocks that were not set
		return Memory{}
	}
	return Memory{at: stored - steady, known: true, firm: true}
}

// Stored is the clock to remember across starts; 0: none.
func (m *Memory) Stored(steady point.Nanos) point.Nanos {
	if !m.known {
		return 0
	}
	return m.at + steady
}

// Rows says what senders wrote since the last round, in rows with times of their own.
type Rows struct {
	Near  bool // some of within NearMax of the machine's clock
	Ahead bool // some of later than that
}

// Look is one round. Confirmed: a person confirms that the wall clock, where it is ahead, is right.
func (m *Memory) Look(wall, steady point.Nanos, rows Rows, confirmed bool) {
	if wall < point.ClockFirst {
		m.read, m.agree = false, 0
		return
	}
	if drift := wall - steady - m.wall; !m.read || drift < -int64(NearMax) || drift > int64(NearMax) {
		m.stands, m.agree = steady, 0
	}
	m.read, m.wall = true, wall-steady
	stood := steady-m.stands >= int64(StandFor)
	ahead := m.wall - m.at
	switch {
	case !m.known, -int64(NearMax) <= ahead && ahead <= int64(NearMax),
		ahead > 0 && (confirmed || stood && ahead <= int64(JumpMax)),
		ahead < 0 && (!m.firm || m.agreed(rows)):
		m.at, m.known, m.met, m.agree = m.wall, true, true, 0
	}
	m.firm = m.firm || stood
}

// agreed counts rounds in which senders agree with the machine's clock.
func (m *Memory) agreed(rows Rows) bool {
	switch {
	case rows.Ahead:
		m.agree = 0
	case rows.Near:
		m.agree++
	}
	return m.agree >= CorrectAfter
}

// State is the judgment until the next round. After a start the right time may be later than the remembered one by as long as the host was off.
func (m *Memory) State() State {
	if !m.known {
		return State{}
	}
	s := State{Verdict: Unsure, Ref: m.at, Within: NearMax}
	if !m.met {
		s.Slack = JumpMax
	}
	return s
}
