import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { freePort } from '../../scripts/lib/ports';
import { startRedis } from '../../scripts/lib/redis';
import { useBed } from './harness/bed';
import { engineVersions, type RedisCredential } from './harness/engine';
import { until } from '../engine/support/until';
import { untilWaiting } from './harness/look';
import { acquire, hold, release, workflow } from './harness/workflow';

describe.each(engineVersions)('the Redis credential on n8n-core %s', (version) => {
  const bed = useBed(version);

  const take = (key: string) => workflow([acquire('Acquire', { key })], 'Start -> Acquire');
  const takeAs = async (key: string, redis: RedisCredential) =>
    await bed.engine.run(take(key), { credentials: { redis } });

  /** Connections to the server of one user. */
  async function connectionsOf(user: string): Promise<number> {
    const list = (await bed.redis.client('LIST')) as string;
    return list.split('\n').filter((line) => line.includes(` user=${user} `)).length;
  }

  it('chooses the database', async () => {
    const key = bed.key();
    const result = await takeAs(key, { ...bed.credential, database: 3 });
    const third = bed.redis.duplicate({ db: 3 });

    expect(result.counts('Acquire')).toEqual([1, 0, 0]);
    expect(await bed.redis.exists(key)).toBe(0);
    expect(await third.exists(key)).toBe(1);
    third.disconnect();
  });

  it('with a database that does not exist locks nothing', async () => {
    const key = bed.key();
    const result = await takeAs(key, { ...bed.credential, database: 99 });

    expect(result.status).toBe('error');
    expect(result.errorText).toMatch(/database/i);
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('signs in as an ACL user', async () => {
    await bed.redis.acl('SETUSER', 'worker', 'on', '>worker-password', '~*', '&*', '+@all');
    const key = bed.key();
    const good = await takeAs(key, { ...bed.credential, user: 'worker', password: 'worker-password' });
    expect(good.counts('Acquire')).toEqual([1, 0, 0]);
    expect(await connectionsOf('worker')).toBeGreaterThan(0);

    const bad = await takeAs(key, { ...bed.credential, user: 'worker', password: 'not-this-one' });
    expect(bad.status).toBe('error');
    expect(bad.errorText).toContain(`${bed.server.host}:${bed.server.port}`);
    expect(bad.data).not.toContain('not-this-one');
  });

  it('signs in with a password alone; an empty user is none', async () => {
    const server = await startRedis({ args: ['--requirepass', 'only-a-password'] });
    const credential = { host: server.host, port: server.port, user: '', password: 'only-a-password' };
    try {
      expect((await takeAs(bed.key(), credential)).counts('Acquire')).toEqual([1, 0, 0]);
      const without = await takeAs(bed.key(), { ...credential, password: '' });
      expect(without.status).toBe('error');
      expect(without.errorText).toContain(`${server.host}:${server.port}`);
    } finally {
      await server.stop();
    }
  });

  it('is refused at once when the password is wrong', async () => {
    const startedAt = Date.now();
    await takeAs(bed.key(), { ...bed.credential, user: 'nobody', password: 'guess' });

    expect(Date.now() - startedAt).toBeLessThan(2000);
  });

  it('is served by one connection for many executions', async () => {
    await bed.redis.acl('SETUSER', 'crowd', 'on', 'nopass', '~*', '&*', '+@all');
    const redis = { ...bed.credential, user: 'crowd', password: 'any' };
    const runs = Array.from({ length: 20 }, () =>
      bed.engine.start(
        workflow(
          [acquire('Acquire', { key: bed.key() }), hold('Hold'), release('Release', {})],
          'Start -> Acquire -> Hold -> Release',
        ),
        { credentials: { redis } },
      ),
    );
    await Promise.all(runs.map(async (run) => await run.reached('Hold', 'holding')));
    expect(await connectionsOf('crowd')).toBe(1);

    await Promise.all(runs.map(async (run) => await run.letGo('Hold')));
    for (const run of runs) expect((await run.finished).counts('Release')).toEqual([1, 0]);
  });

  it('needs one more connection for any number of executions that wait', async () => {
    await bed.redis.acl('SETUSER', 'line', 'on', 'nopass', '~*', '&*', '+@all');
    const redis = { ...bed.credential, user: 'line', password: 'any' };
    const key = bed.key();
    await bed.engine.run(take(key));
    const waiters = Array.from({ length: 10 }, () =>
      bed.engine.start(workflow([acquire('Acquire', { key, whenBusy: 'wait' })], 'Start -> Acquire'), {
        credentials: { redis },
      }),
    );
    await untilWaiting(bed.redis, key, 10);
    await until(async () => (await connectionsOf('line')) === 2);

    for (const waiter of waiters) waiter.cancel();
    await Promise.all(waiters.map(async (waiter) => await waiter.finished));
  });

  it.each(['eval', 'hset', 'set', 'time'])('of a user who may not run %s is told so', async (command) => {
    const user = `no-${command}`;
    await bed.redis.acl('SETUSER', user, 'on', '>secret-of-user', '~*', '&*', '+@all', `-${command}`);
    const key = bed.key();
    const result = await takeAs(key, { ...bed.credential, user, password: 'secret-of-user' });

    expect(result.status).toBe('error');
    expect(result.errorText.toLowerCase()).toContain(command);
    expect(result.errorText).toContain(`${bed.server.host}:${bed.server.port}`);
    expect(result.data).not.toContain('secret-of-user');
    expect(await bed.redis.exists(key)).toBe(0);
  });

  it('of a user who may not touch the key is told so', async () => {
    await bed.redis.acl('SETUSER', 'elsewhere', 'on', 'nopass', '~elsewhere:*', '&*', '+@all');
    const result = await takeAs(bed.key(), { ...bed.credential, user: 'elsewhere', password: 'any' });

    expect(result.status).toBe('error');
    expect(result.errorText).toMatch(/key/i);
  });

  it('of a user without any channel still takes, hands on and enters', async () => {
    await bed.redis.acl('SETUSER', 'mute', 'on', 'nopass', '~*', 'resetchannels', '+@all');
    const credentials = { redis: { ...bed.credential, user: 'mute', password: 'any' } };
    const key = bed.key();
    const holder = bed.engine.start(
      workflow(
        [acquire('Acquire', { key }), hold('Hold'), release('Release', {})],
        'Start -> Acquire -> Hold -> Release',
      ),
      { credentials },
    );
    await holder.reached('Hold', 'holding');
    const waiter = bed.engine.start(workflow([acquire('Acquire', { key, whenBusy: 'wait' })], 'Start -> Acquire'), {
      credentials,
    });
    await untilWaiting(bed.redis, key);
    await holder.letGo('Hold');

    expect((await holder.finished).counts('Release')).toEqual([1, 0]);
    expect((await waiter.finished).counts('Acquire')).toEqual([1, 0, 0]);
  });

  it('of a Redis that goes away ends a wait with an error', async () => {
    const server = await startRedis();
    const credentials = { redis: { host: server.host, port: server.port } };
    const key = bed.key();
    await bed.engine.run(take(key), { credentials });
    const elsewhere = bed.redis.duplicate({ host: server.host, port: server.port });
    const waiter = bed.engine.start(
      workflow([acquire('Acquire', { key, whenBusy: 'wait', maxWait: 2 })], 'Start -> Acquire -> Critical section'),
      { credentials },
    );
    await untilWaiting(elsewhere, key);
    elsewhere.disconnect();
    await server.kill();
    const result = await waiter.finished;

    expect(result.status).toBe('error');
    expect(result.ran('Critical section')).toBe(false);
    expect(result.error?.message).toContain(`${server.host}:${server.port}`);
  });

  it('of a read-only replica is told so', async () => {
    const replica = await startRedis({ args: ['--replicaof', bed.server.host, String(bed.server.port)] });
    try {
      const result = await takeAs(bed.key(), { host: replica.host, port: replica.port });
      expect(result.status).toBe('error');
      expect(result.errorText).toMatch(/read.?only/i);
      expect(result.errorText).toContain(`${replica.host}:${replica.port}`);
    } finally {
      await replica.stop();
    }
  });

  it('survives a restart of Redis', async () => {
    const port = await freePort();
    const credential = { host: '127.0.0.1', port };
    const before = await startRedis({ port });
    expect((await takeAs(bed.key(), credential)).counts('Acquire')).toEqual([1, 0, 0]);
    await before.stop();

    const after = await startRedis({ port });
    expect((await takeAs(bed.key(), credential)).counts('Acquire')).toEqual([1, 0, 0]);
    await after.stop();
  });

  describe('with SSL', () => {
    let folder: string;
    let stop: () => Promise<void>;
    let credential: RedisCredential;

    beforeAll(async () => {
      folder = mkdtempSync(join(tmpdir(), 'redis-lock-tls-'));
      const [certificate, privateKey] = [join(folder, 'cert.pem'), join(folder, 'key.pem')];
      const request = ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-subj', '/CN=localhost', '-days', '2'];
      execFileSync('openssl', [...request, '-keyout', privateKey, '-out', certificate], { stdio: 'ignore' });
      const tlsPort = await freePort();
      const files = ['--tls-cert-file', certificate, '--tls-key-file', privateKey, '--tls-auth-clients', 'no'];
      const server = await startRedis({ args: ['--tls-port', String(tlsPort), ...files] });
      stop = server.stop;
      credential = { host: server.host, port: tlsPort, ssl: true };
    });

    afterAll(async () => {
      await stop?.();
      rmSync(folder, { recursive: true, force: true });
    });

    it('speaks TLS, without verification where the user said so', async () => {
      const result = await takeAs(bed.key(), { ...credential, disableTlsVerification: true });
      expect(result.counts('Acquire')).toEqual([1, 0, 0]);
    });

    it('refuses a certificate that nobody vouches for', async () => {
      const result = await takeAs(bed.key(), credential);
      expect(result.status).toBe('error');
      expect(result.errorText).toMatch(/certificate|SSL|TLS/i);
    });

    it('says what may be wrong where TLS is missing', async () => {
      const result = await takeAs(bed.key(), { ...credential, ssl: false });
      expect(result.status).toBe('error');
      expect(result.errorText).toMatch(/SSL|TLS/);
    });
  });
});
