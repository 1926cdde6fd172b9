package archtest

import (
	"go/ast"
	"regexp"
	"strings"
	"testing"
)

// riddles are words that stand in comments where the field's own word is missing, and how many times they may occur in 1,000 lines of comments:
// three times as often as in Prometheus' tsdb, where a comment names the caller, the leader or the sender and says what it does.
var riddles = []struct {
	name, instead string
	pattern       *regexp.Regexp
	perThousand   float64
}{
	{"who", "the caller, the leader, the sender", regexp.MustCompile(`(?i)\b(who|whoever|whom)\b`), 0.5},
	{"nobody", "no server, no goroutine, all callers", regexp.MustCompile(`(?i)\b(nobody|somebody|everybody|anybody)\b`), 1},
	{"what is", "a noun", regexp.MustCompile(`(?i)\bwhat (is|has|was|are|of|it|they|comes|came|lies|could|must)\b`), 5},
	{"take", "accept, acquire, use, need, remove, read", regexp.MustCompile(`(?i)\b(take|takes|took|taken|taking)\b`), 20},
	{"told", "report, send, notify, receive", regexp.MustCompile(`(?i)\b(tell|tells|told|hear|hears|heard)\b`), 1.5},
}

// TestCommentsAreInPlainWords counts words, not sentences: after a rise the new comments are to be read again.
func TestCommentsAreInPlainWords(t *testing.T) {
	lines, found := 0, make([]int, len(riddles))
	for _, p := range repository(t) {
		for _, f := range p.files {
			if ast.IsGenerated(f.tree) || p.path == "cmd/archtest" && f.name == "words_test.go" {
				continue
			}
			for _, group := range f.tree.Comments {
				for _, c := range group.List {
					lines += strings.Count(c.Text, "\n") + 1
					for i := range riddles {
						found[i] += len(riddles[i].pattern.FindAllString(c.Text, -1))
					}
				}
			}
		}
	}
	for i, r := range riddles {
		if got := 1000 * float64(found[i]) / float64(lines); got > r.perThousand {
			t.Errorf("%q and its like occur %.2f times in 1,000 lines of comments, want %.1f at most: write %s instead", r.name, got, r.perThousand, r.instead)
		} else {
			t.Logf("%q: %.2f", r.name, got)
		}
	}
	if lines < 10_000 {
		t.Errorf("only %d lines of comments were seen", lines)
	}
}
