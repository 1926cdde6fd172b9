package chain

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestScripts plays histories in testdata/scripts: placements named H, M, T of one partition, the links between them and the lease row. Each command
// draws, where they changed, the row and every placement (its head, the epoch it promised, whether it calls itself sure, its log: fsynced | not yet),
// and then the events. The world's own checks print BROKEN.
//
//	cluster H M T [min=2]            all listed, none leads
//	demand 3                         a person sets the minimum of the list: a shorter one accepts no frames
//	take M [drop]                    M acquires the lease row if it is listed; drop: without the silent holder
//	write H a b …                    the head accepts frames
//	run 500ms                        time goes by, everything is delivered
//	messages                         how many messages were sent since the last time
//	want M                           a read needs M to be sure
//	link M H                         M sees that its link to H is new, or has ended
//	leave T                          T's process is about to end
//	unmap T                          the map has T no more
//	lazy T | eager T                 T's disk waits for `sync T`, or does not
//	busy T | calm T                  T's server sends something all the time, on other partitions' behalf
//	sync T                           the work requested of T's disk is done
//	fail H                           the fsync of H's newest frames fails
//	kill H [survive=1] | start H     of frames not fsynced the first survive
//	empty H                          H's directory is lost
//	cut H T | heal H T               one way: H's messages to T are lost
//	hold H T | release H T           one way: H's messages to T are late
//	store away | mute | back         the coordination store; mute: it carries out requests, and its answers are late
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var w *world
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var args []string
			vals := map[string]int{}
			for _, a := range d.CmdArgs {
				if len(a.Vals) == 1 {
					vals[a.Key], _ = strconv.Atoi(a.Vals[0])
					continue
				}
				args = append(args, a.Key)
			}
			if d.Cmd == "cluster" {
				w = newWorld(max(vals["min"], 1), args...)
				w.drawn = w.draw()
				return w.drawn
			}
			w.trace = nil
			w.command(t, d, args, vals)
			w.check()
			drawn := w.draw()
			if drawn == w.drawn {
				drawn = ""
			} else {
				w.drawn = drawn
			}
			return drawn + strings.Join(append(w.trace, ""), "\n")
		})
	})
}

func (w *world) command(t *testing.T, d *datadriven.TestData, args []string, vals map[string]int) {
	link := func() [2]string { return [2]string{args[0], args[1]} }
	switch d.Cmd {
	case "take":
		w.node(args[0]).take(len(args) > 1)
		w.quiet()
	case "write":
		for _, body := range args[1:] {
			if !w.node(args[0]).write(body) {
				w.say("%s does not take %s", args[0], body)
			}
		}
		w.quiet()
	case "run":
		x, err := time.ParseDuration(args[0])
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		w.run(x)
	case "messages":
		w.say("%d messages", w.sent)
		w.sent = 0
	case "awake": // so many chains of each process are
		w.awake, _ = strconv.Atoi(args[0])
	case "want":
		w.node(args[0]).step(Wanted{})
		w.quiet()
	case "link":
		w.node(args[0]).step(Linked{w.node(args[1]).member.Server})
		w.quiet()
	case "leave":
		w.node(args[0]).step(Leaving{})
		w.quiet()
	case "unmap":
		w.unmap(args[0])
		w.quiet()
	case "slow": // these say that their disks are slow, and no others
		w.saySlow(args...)
		w.quiet()
	case "lazy", "eager":
		w.node(args[0]).lazy = d.Cmd == "lazy"
	case "busy", "calm":
		w.node(args[0]).busy = d.Cmd == "busy"
	case "sync":
		w.node(args[0]).settle()
		w.node(args[0]).fsync()
		w.quiet()
	case "demand":
		w.min, _ = strconv.Atoi(args[0])
		w.demanded = true
		for _, n := range w.nodes {
			if n.m != nil {
				n.step(w.placements())
			}
		}
		w.quiet()
	case "fail":
		w.node(args[0]).fail()
		w.quiet()
	case "kill":
		w.node(args[0]).kill(vals["survive"])
	case "start":
		w.node(args[0]).start()
		w.quiet()
	case "empty":
		w.node(args[0]).empty()
	case "cut", "heal":
		w.cut[link()] = d.Cmd == "cut"
	case "hold", "release":
		w.held[link()] = d.Cmd == "hold"
		w.quiet()
	case "store":
		w.away, w.mute, w.lapsed = args[0] == "away", args[0] == "mute", args[0] == "lapsed" || args[0] == "late"
		for _, n := range w.nodes {
			if args[0] != "late" { // the heads learn later, with the placements, that the lease has lapsed
				n.step(w.placements())
			}
		}
		w.quiet()
	default:
		d.Fatalf(t, "no command %q", d.Cmd)
	}
}
