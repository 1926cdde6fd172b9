package segment

import "testing"

// A list is counted in the Cache by the pages that hold it: without a page it must leave no bytes behind.
func TestAListWhosePageIsTooLargeLeavesNothingInTheCache(t *testing.T) {
	c := NewCache(600) // 150 bytes for decoded parts: room for the list of 113, and not for its page of 163
	defer c.Close()
	if got := c.putAnswer(pageKey{group: answersGroup}, "job", []string{"a"}); len(got) != 1 || got[0] != "a" {
		t.Fatalf("the answer is %q", got)
	}
	if c.mu.bytes != 0 || len(c.mu.answers) != 0 || len(c.mu.pages) != 0 {
		t.Fatalf("%d bytes, %d lists and %d pages stay", c.mu.bytes, len(c.mu.answers), len(c.mu.pages))
	}
}
