import type Redis from 'ioredis';
import { startRedis, type RedisServer } from '../../../scripts/lib/redis';
import type { Locks } from '../../../engine';
import { newKey, take, useBed, useProxy, wait, won } from '../support/bed';
import { timed, until } from '../support/until';
import { inLine } from '../support/state';

// Outside of the suite, so that its checks follow the clean-up there: they need a server that answers. And without the five
// seconds in which a master collects more replicas for one transfer.
const bed = useBed(['--repl-diskless-sync-delay', '0']);
const proxy = useProxy(bed);

/** The master is killed and its replica takes its place, behind the same address. */
describe('a failover', () => {
  let replica: RedisServer;
  let onReplica: Redis;
  let before: Locks;

  beforeEach(async () => {
    replica = await startRedis({ args: ['--replicaof', bed.server.host, String(bed.server.port)] });
    onReplica = bed.clientOf(replica.url);
    await until(async () => /master_link_status:up/.test(await onReplica.info('replication')), 15_000, 20);
    before = bed.locks({}, { url: proxy.url });
  }, 20_000);
  afterEach(async () => {
    onReplica.disconnect();
    await replica.stop();
    await bed.server.kill();
    await bed.comeBack();
  }, 20_000);

  /** Everything that was written so far is on the replica. */
  const replicated = async () => {
    await bed.redis.set('last', 'write', 'PX', 60_000);
    expect(await bed.redis.wait(1, 5000)).toBe(1);
  };
  const promote = () => onReplica.replicaof('NO', 'ONE');
  const failOver = async () => {
    proxy.refusing = true;
    await bed.server.kill();
    proxy.target = replica;
    proxy.refusing = false;
  };

  it('F23: leaves the holder its lock and the waiter its place', async () => {
    const key = newKey();
    const holder = await take(before, key, { ttlMs: 60_000 });
    const waiting = wait(bed.locks({}, { url: proxy.url }), key, { waitMs: 60_000 });
    await inLine(bed.redis, key, 1);
    await replicated();
    await promote();
    await failOver();

    expect(await holder.heartbeat()).toMatchObject({ outcome: 'alive', revived: false, fencingToken: holder.fencingToken });
    expect(await bed.locks({}, { url: replica.url }).acquire(key, { ttlMs: 1000 })).toMatchObject({ outcome: 'busy', queue: 1 });
    expect((await holder.release()).outcome).toBe('released');
    const { ms, value } = await timed(waiting);
    expect((await won(value!)).fencingToken).toBeGreaterThan(holder.fencingToken);
    expect(ms).toBeLessThan(10_000);
  }, 30_000);

  it('F23: that forgets a grant leaves the lock to anybody, not only to its old holder, who is told', async () => {
    const key = newKey();
    await replicated();
    // From here on nothing reaches it.
    await promote();
    const holder = await take(before, key, { ttlMs: 60_000 });
    await failOver();

    const next = await take(bed.locks({}, { url: proxy.url }), key);
    expect(next.fencingToken).toBeGreaterThan(holder.fencingToken);
    expect(await holder.heartbeat()).toMatchObject({ outcome: 'lost', by: { fencingToken: next.fencingToken } });
    expect(await holder.release()).toMatchObject({ outcome: 'notHeld', by: { fencingToken: next.fencingToken } });
    expect((await next.heartbeat()).outcome).toBe('alive');
    expect((await next.release()).outcome).toBe('released');
  }, 30_000);
});
