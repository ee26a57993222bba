package guard

import "context"

// HoldOf is the hold of a guard. Tests look at it.
func HoldOf(ctx context.Context) Hold { return ctx.(*guard).hold }

// Intercept has between called whenever the guards that end with ctx, a guard, are ended. Tests use it.
func Intercept(ctx context.Context, between func()) {
	end := ctx.(*guard).end
	cancel := end.cancel
	end.cancel = func(cause error) {
		cancel(cause)
		between()
	}
}
