package findings

import (
	"fmt"
	"strings"
	"testing"
)

// TestAProblemOfEachTenantDoesNotFillThePage: each of ten thousand tables had a sentence of its own, since each names a time. The page read a megabyte of them
// every five seconds.
func TestAProblemOfEachTenantDoesNotFillThePage(t *testing.T) {
	var p Problems
	for i := range 10_000 {
		p.Add(fmt.Sprintf("The rows of partition %%s cannot be written: the next try is at 10:%02d:%02d.", i/60%60, i%60), fmt.Sprintf("tenant%d/1", i))
	}
	all := p.Texts()
	if n := len(all); n != problemTexts+1 {
		t.Fatalf("%d sentences", n)
	}
	if want := fmt.Sprintf("There are %d more problems", 3600-problemTexts); !strings.HasPrefix(all[problemTexts], want) {
		t.Errorf("the last one is %q", all[problemTexts])
	}
	if !strings.Contains(all[0], "tenant0/1, tenant3600/1") {
		t.Errorf("the first one is %q", all[0])
	}
}
