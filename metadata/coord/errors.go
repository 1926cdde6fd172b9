package coord

import "errors"

// ErrCompacted means that the changes asked for are no longer kept (C15).
var ErrCompacted = errors.New("the changes since that revision are no longer kept: list the rows, then watch from there")
