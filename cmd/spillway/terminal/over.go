package terminal

// Over sets dst to the value of a flag, if the flag was given; nil: it was not.
func Over[T any](dst, src *T) {
	if src != nil {
		*dst = *src
	}
}
