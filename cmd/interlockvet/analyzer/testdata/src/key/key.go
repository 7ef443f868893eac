// Package key has keys that are not one key for one resource.
package key

import (
	"context"
	"fmt"
	"strconv"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fencing"
	"github.com/interlock-go/interlock/core/idempotency"
)

type kind string

func work(context.Context) error { return nil }

// Fault 14: two texts with a separator between.
func several(ctx context.Context, locker *core.Locker, tenant, user string) error {
	if err := locker.Do(ctx, fmt.Sprintf("quota/%s/%s", tenant, user), work); err != nil { // want `key: tenant may contain the separator, and two resources would have one key; make the key with core.Key\("quota", tenant, user\)`
		return err
	}
	key := "quota:" + tenant + ":" + user
	return locker.Do(ctx, key, work) // want `key: tenant may contain the separator, .* core.Key\("quota", tenant, user\)`
}

func numbers(ctx context.Context, locker *core.Locker, tenant, account int64, user string, of kind) error {
	for _, key := range []string{
		fmt.Sprintf("account/%d/%d", tenant, account), fmt.Sprintf("account/%d/%s", tenant, user),
		"user/" + user, "of/" + string(of) + "/" + strconv.FormatInt(tenant, 10),
	} {
		if err := locker.Do(ctx, key, work); err != nil {
			return err
		}
	}
	if err := locker.Do(ctx, fmt.Sprintf("account/%d/%s", tenant, user), work); err != nil {
		return err
	}
	key, err := core.Key("quota", user, "x")
	if err != nil {
		return err
	}
	return locker.Do(ctx, key, work)
}

// Fault 15: one resource under two forms.
func forms(locker *core.Locker) []*core.Guard {
	return []*core.Guard{
		core.Serialize(locker, "account/{id:int}"),
		core.Share(locker, "account/{id}"), // want `key: account/{id} and account/{id:int} make two locks for one resource`
		core.Serialize(locker, "account/{id:int}", core.And("invoice/{invoice:uuid}")),
		core.Share(locker, "invoice/{number:int}"), // another value
		core.Share(locker, "{id}"),
		core.AtMost(locker, 3, "{id:int}"),
	}
}

// Fault 16: a rule has the key in another form.
func batch(ctx context.Context, locker *core.Locker, id string, number int) error {
	if err := locker.Do(ctx, "account/"+id, work); err != nil { // want `key: a rule locks account/{id:int}, .* form int; make the same key with core.Key\("account", id\)`
		return err
	}
	return locker.Do(ctx, "account/"+strconv.Itoa(number), work)
}

// Fault 17: a fencing token in an idempotency key.
func invoice(lease *core.Lease, id string) []string {
	token := strconv.FormatInt(lease.Token(), 10)
	return []string{
		fencing.IdempotencyKey("invoice", id, token),                     // want `key: the fencing token in an idempotency key makes another key after a lost lock`
		fencing.IdempotencyKey("invoice", id, fmt.Sprint(lease.Token())), // want `key: the fencing token`
		fencing.IdempotencyKey("invoice", id, "settle"),
	}
}

type bank struct{}

func (bank) transfer(context.Context, int, string) error { return nil }

// Fault 18: one derived key for two transfers.
func transfers(ctx context.Context, b bank) error {
	if err := b.transfer(ctx, 100, idempotency.DownstreamKey(ctx)); err != nil {
		return err
	}
	return b.transfer(ctx, 1, idempotency.DownstreamKey(ctx)) // want `key: two calls of b.transfer have one derived key, .* name them`
}

func named(ctx context.Context, b bank, small bool) error {
	if small {
		return b.transfer(ctx, 1, idempotency.DownstreamKey(ctx))
	}
	if err := b.transfer(ctx, 100, idempotency.DownstreamKey(ctx, "debit")); err != nil {
		return err
	}
	return b.transfer(ctx, 1, idempotency.DownstreamKey(ctx, "fee"))
}

func metrics(ctx context.Context, locker *core.Locker, key string) error {
	if err := locker.Do(ctx, key, work, core.Name("account")); err != nil {
		return err
	}
	return locker.Do(ctx, key, work, core.Name(key)) // want `key: a key as a Name makes a series of metrics for each key`
}
