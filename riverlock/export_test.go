package riverlock

import "context"

// SetMetadata puts a function in the place of river.MetadataSet, which works in River's executor
// alone.
func SetMetadata(f func(ctx context.Context, key string, value any) error) { setMetadata = f }
