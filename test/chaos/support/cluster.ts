import net from 'node:net';
import Redis from 'ioredis';
import { startRedis, type RedisServer } from '../../../scripts/lib/redis';
import { until } from '../../engine/support/until';

const SLOTS = 16384;

/** Three masters without replicas, from the same server program as every other Redis of the tests. */
export class TestCluster {
  private constructor(
    readonly nodes: Array<{ host: string; port: number }>,
    /** A plain client of each master. */
    readonly masters: Redis[],
    private readonly servers: RedisServer[],
  ) {}

  static async start(): Promise<TestCluster> {
    const servers: RedisServer[] = [];
    for (let i = 0; i < 3; i++) servers.push(await startNode());
    const masters = servers.map(({ host, port }) => new Redis({ host, port }));
    for (const [i, master] of masters.entries()) {
      const [from, to] = [Math.ceil((i * SLOTS) / 3), Math.ceil(((i + 1) * SLOTS) / 3)];
      await master.cluster('ADDSLOTS', ...Array.from({ length: to - from }, (_, slot) => from + slot));
      await master.call('CLUSTER', 'SET-CONFIG-EPOCH', String(i + 1));
    }
    for (const { host, port } of servers.slice(1)) await masters[0]!.cluster('MEET', host, port);
    await until(async () => {
      const infos = await Promise.all(masters.map((master) => master.cluster('INFO')));
      return infos.every((info) => /cluster_state:ok/.test(info) && /cluster_known_nodes:3/.test(info));
    }, 20_000, 50);
    return new TestCluster(servers.map(({ host, port }) => ({ host, port })), masters, servers);
  }

  /** Which of the masters has a key. */
  async masterOf(key: string): Promise<number> {
    const slot = await this.masters[0]!.cluster('KEYSLOT', key);
    return Math.floor((slot * 3) / SLOTS);
  }

  async stop(): Promise<void> {
    for (const master of this.masters) master.disconnect();
    await Promise.all(this.servers.map((server) => server.stop()));
  }
}

/** The port between the nodes is 10,000 higher than the other, and both have to be free. */
async function startNode(): Promise<RedisServer> {
  for (;;) {
    const port = 20_000 + Math.floor(Math.random() * 20_000);
    if (!(await isFree(port)) || !(await isFree(port + 10_000))) continue;
    return startRedis({ port, args: ['--cluster-enabled', 'yes', '--cluster-node-timeout', '5000'] });
  }
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = net.createServer();
    server.once('error', () => resolve(false));
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)));
  });
}
