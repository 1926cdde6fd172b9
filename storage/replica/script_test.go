package replica

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestScripts plays histories in testdata/scripts. After each command every placement's chain of segments is drawn, a major with a *, and
// the events. The world's own checks print BROKEN.
//
//	servers H M T      H leads the first epoch
//	write 3            the leader's log grows; follow: the others' logs as well, and they promise its epoch
//	follow [M]
//	flush | compact    the leader makes a segment of the frames that all have; folds its chain into a major
//	fold 2 | folded    the leader begins to fold its segments from the third on into one; it is done
//	take M             M leads the next epoch
//	down M | up M      its process; unfinished files are gone
//	early M            M's program is of before segments waited for those above them
//	lose on|off        all messages are lost
//	corrupt 1          so many of the next files arrive damaged
//	break M 0          the file of M's first segment is damaged
//	free 10            bytes that may be written
//	run 5s             time goes by, everything is delivered
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var w *world
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var args []string
			for _, a := range d.CmdArgs {
				args = append(args, a.Key)
			}
			if d.Cmd == "servers" {
				w = newWorld(args...)
				return w.draw()
			}
			w.trace = nil
			w.command(t, d, args)
			w.check()
			if w.broken != "" {
				return "BROKEN: " + w.broken
			}
			return w.draw() + strings.Join(append(w.trace, ""), "\n")
		})
	})
}

func (w *world) command(t *testing.T, d *datadriven.TestData, args []string) {
	number := func() int {
		n, err := strconv.Atoi(args[0])
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		return n
	}
	switch d.Cmd {
	case "write":
		w.write(uint64(number()))
	case "follow":
		for _, n := range w.nodes {
			if len(args) == 0 || n.name == args[0] {
				w.follow(n)
			}
		}
	case "flush":
		w.flush()
	case "compact":
		w.compact()
	case "fold":
		w.beginFold(number())
	case "folded":
		w.endFold()
	case "take":
		w.take(w.named(args[0]))
	case "early":
		w.named(args[0]).early = true
	case "down":
		w.named(args[0]).down = true
	case "up":
		n := w.named(args[0])
		n.restart()
		w.follow(n)
		w.perform(w.leader, w.leader.sender.Step(w.now, Unlinked{n.member}, nil))
	case "lose":
		w.loses = func() bool { return args[0] == "on" }
	case "corrupt":
		w.corrupt = number()
	case "break":
		i, err := strconv.Atoi(args[1])
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		w.named(args[0]).breaks(i)
	case "free":
		w.free = uint64(number())
	case "run":
		x, err := time.ParseDuration(args[0])
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		w.run(x)
	default:
		d.Fatalf(t, "no command %q", d.Cmd)
	}
}
