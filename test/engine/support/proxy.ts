import net from 'node:net';

/** What the proxy does with a command: passes it on, or worse. */
export type Fate =
  | 'pass'
  | 'loseReply' // Redis executes it; the connection is cut instead of the answer
  | 'swallow' // it never reaches Redis, and nothing more is said on this connection
  | { delayMs: number }; // it reaches Redis later

/**
 * A TCP proxy before Redis that misbehaves as told. A chunk that a client writes is one command here, or several that
 * were sent together; `judge` sees its bytes as text.
 */
export class Proxy {
  judge: (command: string) => Fate = () => 'pass';
  /** Refuses new connections. */
  refusing = false;
  /** How many commands have reached Redis late. */
  delivered = 0;
  private readonly sockets = new Set<net.Socket>();
  private server!: net.Server;

  static async start(target: { host: string; port: number }): Promise<Proxy> {
    const proxy = new Proxy();
    proxy.server = net.createServer((client) => proxy.connect(client, target));
    await new Promise<void>((resolve) => proxy.server.listen(0, '127.0.0.1', resolve));
    return proxy;
  }

  get port(): number {
    return (this.server.address() as net.AddressInfo).port;
  }

  get url(): string {
    return `redis://127.0.0.1:${this.port}`;
  }

  /** Cuts all connections. */
  cut(): void {
    for (const socket of this.sockets) socket.destroy();
  }

  async stop(): Promise<void> {
    this.cut();
    await new Promise((resolve) => this.server.close(resolve));
  }

  private connect(client: net.Socket, target: { host: string; port: number }): void {
    if (this.refusing) {
      client.destroy();
      return;
    }
    const redis = net.connect(target.port, target.host);
    let losing = false;
    let silent = false;
    let clientGone = false;
    let held = 0;
    client.on('data', (bytes) => {
      if (silent) return;
      const fate = this.judge(bytes.toString('latin1'));
      if (fate === 'swallow') silent = true;
      else if (typeof fate === 'object') {
        held += 1;
        setTimeout(() => {
          held -= 1;
          if (!redis.destroyed) redis.write(bytes, () => (this.delivered += 1));
          // What was under way still arrives, though its sender is gone.
          if (clientGone && held === 0) redis.end();
        }, fate.delayMs).unref();
      } else {
        losing ||= fate === 'loseReply';
        redis.write(bytes);
      }
    });
    redis.on('data', (bytes) => {
      if (losing) client.destroy();
      else if (!client.destroyed && !silent) client.write(bytes);
    });
    for (const socket of [client, redis]) {
      this.sockets.add(socket);
      socket.on('error', () => {});
      socket.on('close', () => this.sockets.delete(socket));
    }
    client.on('close', () => {
      clientGone = true;
      if (held === 0) redis.destroy();
    });
    redis.on('close', () => client.destroy());
  }
}

/** Applies `fate` to the first command that contains `text`, once; all else passes. */
export function once(text: string, fate: Fate): (command: string) => Fate {
  let armed = true;
  return (command) => {
    if (!armed || !command.includes(text)) return 'pass';
    armed = false;
    return fate;
  };
}
