package rpc

import (
	"context"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// refusing is a server that refuses reads with a text.
type refusing struct {
	*memory
	kind fault.Kind
	text string
}

func (r refusing) LabelNames(context.Context, *peer.Select, int) ([]string, bool, error) {
	return nil, false, fault.Errorf(r.kind, "%s", r.text)
}

func (r refusing) Evaluate(context.Context, *peer.Select, []byte, func([]byte) error) error {
	return fault.Errorf(r.kind, "%s", r.text)
}

// TestARefusalKeepsItsKindWhateverItsTextHolds: protobuf refuses a text that is not UTF-8. The text of an error was cut within a character, or quoted such bytes, and the error
// lost its Kind. The asker got Unavailable for an invalid request, and sent the request again for ever. The other evaluations of the query failed, too.
func TestARefusalKeepsItsKindWhateverItsTextHolds(t *testing.T) {
	for name, text := range map[string]string{
		"cut":       strings.Repeat("a", textBytesMax-4) + strings.Repeat("é", 10),
		"not UTF-8": "the label \xff\xfe is unknown",
		"both":      strings.Repeat("\xffa", 3000),
	} {
		for _, kind := range []fault.Kind{fault.Invalid, fault.Stale, fault.TooLarge, fault.Corrupt} {
			p := serveEvaluator(t, refusing{newMemory(), kind, text})
			_, _, err := p.LabelNames(t.Context(), &peer.Select{Table: "t"}, 0)
			wantKind(t, name, err, kind)
			var ended error
			p.EvaluateAll(t.Context(), []*peer.Evaluation{{Select: &peer.Select{Table: "t"}, Request: []byte("r"), Give: func([]byte) error { return nil }, End: func(err error) { ended = err }}})
			wantKind(t, name+", an evaluation", ended, kind)
			for _, err := range []error{err, ended} {
				if err != nil && !utf8.ValidString(err.Error()) {
					t.Errorf("%s: %q", name, err)
				}
			}
		}
	}
}
