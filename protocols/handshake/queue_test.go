package handshake

import (
	"fmt"
	"net"
	"strings"
	"testing"
)

// TestTurnsOfSenders draws a queue of one turn in which four may wait. Handshakes are named by their sender and a number.
//
//	+a1   a1 arrives: it has its turn, waits, or a handshake is refused
//	+a1'  it arrives for its second turn
//	.     the turn ends
//	-a1   a1 gives up
func TestTurnsOfSenders(t *testing.T) {
	for _, c := range []struct{ script, want string }{
		{"+a1 .", "a1:turn none"},
		{"+a1 +a2 +a3 +b1 +c1 . . . . . .", "a1:turn a2:waits a3:waits b1:waits c1:waits a2 b1 c1 a3 none free"},
		{"+a1 +a2 +a3 +a4 +a5 +b1 +b2 . . . .", "a1:turn a2:waits a3:waits a4:waits a5:waits b1:waits,a5:refused b2:waits,a4:refused a2 b1 a3 b2"},
		{"+a1 +a2 +a3 +a4 +a5 +a6", "a1:turn a2:waits a3:waits a4:waits a5:waits a6:refused"},
		{"+a1 +b1 +c1 +d1 +e1 +f1", "a1:turn b1:waits c1:waits d1:waits e1:waits f1:refused"},
		{"+a1 +a2 +b1 +b1' . . . .", "a1:turn a2:waits b1:waits b1':waits b1' a2 b1 none"},
		{"+a1 +a2 +a3 +a4 +a5 +a1' .", "a1:turn a2:waits a3:waits a4:waits a5:waits a1':waits a1'"}, // a second turn is not refused
		{"+a1 +a2 +b1 -a2 -a2 . . +c1", "a1:turn a2:waits b1:waits a2:gone a2:unknown b1 none c1:turn"},
		{"+a1 +a1' -a1' .", "a1:turn a1':waits a1':gone none"},
	} {
		q := queue{free: 1, most: 4}
		all := map[string]*waiter{}
		names := map[*waiter]string{}
		var got []string
		for _, step := range strings.Fields(c.script) {
			name := step[1:]
			switch step[0] {
			case '+':
				w := &waiter{from: sender{port: name[:1]}, begun: strings.HasSuffix(name, "'")}
				all[name], names[w] = w, name
				turn, refused := q.arrive(w)
				switch {
				case turn:
					got = append(got, name+":turn")
				case refused == w:
					got = append(got, name+":refused")
				case refused != nil:
					got = append(got, fmt.Sprintf("%s:waits,%s:refused", name, names[refused]))
				default:
					got = append(got, name+":waits")
				}
			case '-':
				if q.remove(all[name]) {
					got = append(got, name+":gone")
				} else {
					got = append(got, name+":unknown")
				}
			default:
				switch w := q.leave(); {
				case w != nil:
					got = append(got, names[w])
				case q.free > 1:
					got = append(got, "free")
				default:
					got = append(got, "none")
				}
			}
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.script, s, c.want)
		}
		if n := len(q.order); n != len(q.senders) {
			t.Errorf("%s: %d senders are in turns, %d wait", c.script, n, len(q.senders))
		}
	}
}

// TestAddressesOfOneHostAreOneSender: a host has 2⁶⁴ addresses of IPv6, and could have a turn for each.
func TestAddressesOfOneHostAreOneSender(t *testing.T) {
	of := func(port, addr string) sender {
		a, err := net.ResolveTCPAddr("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		return senderOf(port, a)
	}
	for _, c := range []struct {
		a, b sender
		same bool
	}{
		{of("http", "10.0.0.1:5"), of("http", "10.0.0.1:6"), true},
		{of("http", "10.0.0.1:5"), of("http", "[::ffff:10.0.0.1]:6"), true},
		{of("http", "10.0.0.1:5"), of("http", "10.0.0.2:5"), false},
		{of("http", "10.0.0.1:5"), of("admin", "10.0.0.1:5"), false},
		{of("http", "[2001:db8::1]:5"), of("http", "[2001:db8::ffff:2]:6"), true},
		{of("http", "[2001:db8::1]:5"), of("http", "[2001:db8:0:1::1]:5"), false},
		{senderOf("http", &net.UnixAddr{Name: "a"}), senderOf("http", nil), true},
	} {
		if (c.a == c.b) != c.same {
			t.Errorf("%v and %v: one sender is %v", c.a, c.b, !c.same)
		}
	}
}
