package guard

import "context"

// Intercept arranges for between to be called whenever the guards that are canceled together with the guard ctx have
// been canceled. It is for tests.
func Intercept(ctx context.Context, between func()) {
	end := ctx.(*guard).end
	cancel := end.cancel
	end.cancel = func(cause error) {
		cancel(cause)
		between()
	}
}
