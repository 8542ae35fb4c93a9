import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { freePort } from '../../scripts/lib/ports';
import { useBed } from './support/bed';

/** Programs that use locks and never close them. */
describe('a program', () => {
  const bed = useBed();

  async function run(code: string, url = bed.server.url): Promise<{ exit: number | string; output: string; ms: number }> {
    const source = `
      require(${JSON.stringify(join(__dirname, 'support/typescript.js'))});
      const { createLocks } = require(${JSON.stringify(join(__dirname, '../../engine'))});
      const locks = createLocks({ url: ${JSON.stringify(url)} }, { commandTimeoutMs: 1000 });
      (async () => { ${code} })().then(() => console.log('at', performance.now())).catch((error) => console.log(error.code));`;
    const child = spawn(process.execPath, ['-e', source], { stdio: ['ignore', 'pipe', 'pipe'] });
    let output = '';
    child.stdout.on('data', (text) => (output += text));
    child.stderr.on('data', (text) => (output += text));
    const limit = setTimeout(() => child.kill('SIGKILL'), 12_000);
    const started = performance.now();
    const [exit, signal] = await once(child, 'close');
    clearTimeout(limit);
    return { exit: exit ?? signal, output, ms: performance.now() - started };
  }

  it('ends by itself after it acquired and released', async () => {
    const { exit, output } = await run("const { lock } = await locks.acquire('p1', { ttlMs: 10000 }); await lock.heartbeat(); await lock.release();");
    expect(output).toMatch(/^at [\d.]+\n$/);
    expect(exit).toBe(0);
  }, 15_000);

  it('F61: ends by itself after it waited, and while it still holds a lock', async () => {
    const { exit, output } = await run(`
      await locks.acquire('p2', { ttlMs: 300 });
      const { outcome } = await locks.acquire('p2', { ttlMs: 60000, waitMs: 5000 });
      if (outcome !== 'acquired') throw new Error(outcome);`);
    expect(output).toMatch(/^at [\d.]+\n$/);
    expect(exit).toBe(0);
  }, 15_000);

  it('is kept alive by a wait, and not by anything else', async () => {
    const { exit, output } = await run(`
      await locks.acquire('p3', { ttlMs: 60000 });
      const { outcome } = await locks.acquire('p3', { ttlMs: 60000, waitMs: 500 });
      console.log(outcome);`);
    expect(output).toMatch(/^timedOut\nat [\d.]+\n$/);
    expect(exit).toBe(0);
  }, 15_000);

  it('ends by itself when there is no Redis', async () => {
    const { exit, output, ms } = await run("await locks.acquire('p4', { ttlMs: 10000 });", `redis://127.0.0.1:${await freePort()}`);
    expect(output).toBe('unavailable\n');
    expect(exit).toBe(0);
    expect(ms).toBeLessThan(8000);
  }, 15_000);
});
