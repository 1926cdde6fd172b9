package access

import "testing"

// TestAFileThatIsReplacedWhileItIsReadIsReadAgain: its new content passed for the one in force, as it was compared and the old one was used: a certificate that
// was renewed at that moment was not used until the next renewal.
func TestAFileThatIsReplacedWhileItIsReadIsReadAgain(t *testing.T) {
	const before, after = "http_server_config: {http2: false}\n", "http_server_config: {http2: true}\n"
	reads := 0
	load := func() webState {
		t.Helper()
		f := newFiles()
		f.open = func(string) ([]byte, error) {
			if reads++; reads == 1 {
				return []byte(before), nil
			}
			return []byte(after), nil
		}
		w, err := loadWeb("web.yml", f)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	if first, second := load(), load(); first.digest == second.digest {
		t.Error("the file that was replaced counts as the one that was read")
	}
}
