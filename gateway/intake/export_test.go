package intake

// LargeBodies is how many requests servers read of which not all that is gathered had come.
func (f *Front) LargeBodies() int64 { return f.largeBodies.Load() }
