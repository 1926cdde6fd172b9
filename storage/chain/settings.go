package chain

import "time"

// Settings are numbers a user sets.
type Settings struct {
	// PingEvery is how often a member pings its head and the head its members, and how soon an unanswered message is sent again. Default 250 ms.
	PingEvery time.Duration
	// SilentAfter is the silence of a member after which the head removes it from the chain. Default 2 s. Larger: longer write
	// stalls when a server dies; smaller: a pause of a healthy server costs a copy.
	SilentAfter time.Duration
	// StalledAfter is the silence of a member after which writers that can keep their rows elsewhere are refused (Stalled). Default 750 ms. Smaller: rows of a
	// healthy chain are staged where a server is too busy to answer a ping.
	StalledAfter time.Duration
	// SlowAfter is how long nothing may be acknowledged before the member that delays is removed. Default 4 s.
	SlowAfter time.Duration
	// RelistAfter is how long a member that was slow must keep up before it is added again; doubled each time up to RelistMax.
	// Default 30 s and 10 min.
	RelistAfter, RelistMax time.Duration
	// ReachAfter is the same for a member that answered and that no frame reached: its link to the member before it may be whole again soon. Default 3 s,
	// doubled each time up to RelistMax. Smaller: more pauses of writers while a link stays cut.
	ReachAfter time.Duration
	// QuietAfter is how long nothing may have come, and no read may have asked a member, before a chain with all rows acknowledged becomes quiet: its placements
	// stop pinging. Default 1 min, and less where many chains of a process are awake (quietAfter). Smaller: fewer messages at rest, and more
	// reads that must wake the chain.
	QuietAfter time.Duration
	// QuietPingEvery is how often the head of a quiet chain asks whether its members are there. Default 20 s.
	QuietPingEvery time.Duration
	// WindowBytes bounds the bytes on their way to one placement. Default 4 MiB.
	WindowBytes int
	// BacklogBytesMax bounds the bytes that the head has accepted and not all have reported; beyond it frames are refused (Throttled). Default 64 MiB.
	BacklogBytesMax int
	// JoinLagBytes bounds the bytes on their way to a placement that is added to the chain: acknowledgements wait for them. Default 1 MiB.
	JoinLagBytes int
}

const (
	// wellFor is how many times its last pause a member must have been well for its next pause to be the first again.
	wellFor = 5
	// sureFor is how long a placement may call its answers sure after it sent a ping that was answered (DESIGN.md, "Sure").
	sureFor = time.Second
	// unsureAfter is how long the head waits before it acknowledges without a member that might have been sure. With clocks within
	// 10 % of the truth 1.3 s/1.1 is more than 1 s/0.9.
	unsureAfter = 1300 * time.Millisecond
)

func (s *Settings) setDefaults() {
	def(&s.PingEvery, 250*time.Millisecond)
	def(&s.SilentAfter, 2*time.Second)
	def(&s.StalledAfter, 750*time.Millisecond)
	def(&s.SlowAfter, 4*time.Second)
	def(&s.RelistAfter, 30*time.Second)
	def(&s.RelistMax, 10*time.Minute)
	def(&s.ReachAfter, 3*time.Second)
	def(&s.QuietAfter, time.Minute)
	def(&s.QuietPingEvery, 20*time.Second)
	def(&s.WindowBytes, 4<<20)
	def(&s.BacklogBytesMax, 64<<20)
	def(&s.JoinLagBytes, 1<<20)
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}
