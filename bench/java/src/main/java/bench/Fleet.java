package bench;

import com.sun.management.OperatingSystemMXBean;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.nio.NioEventLoopGroup;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Redisson in the benchmarks: clients that stand for processes, and a job a line on standard input. The answer to a
 * job is a line of JSON on standard output. All times are nanoseconds.
 *
 * Arguments: the address, how many clients, the lease in ms. The first answer says that the clients are connected.
 * The jobs:
 *
 *   crowd WORKERS NAMES SECTION TOOK PATIENCE   all workers of all clients lock, sleep and unlock, as crowd.go does
 *   handoff PAUSE TOOK PATIENCE                 one client unlocks and another one waits, as handoff.go does
 *   woken PAUSE TOOK PATIENCE                   the first client writes, and the others wait to read, as woken.go does
 *
 * The end of standard input shuts the clients down and ends the program.
 */
public final class Fleet {
    private static final int NETTY_THREADS = 32, THREADS = 16, IDLE = 24; // Redisson's defaults for one client

    private final ExecutorService threads = Executors.newCachedThreadPool();
    private final List<RedissonClient> clients = new ArrayList<>();

    public static void main(String[] args) throws Exception {
        Fleet fleet = new Fleet(args[0], Integer.parseInt(args[1]), Long.parseLong(args[2]));
        System.out.println("{}");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            String[] job = line.split(" ");
            fleet.threads.execute(() -> System.out.println(fleet.answer(job)));
        }
        fleet.threads.shutdownNow();
        Thread end = new Thread(() -> {
            sleep(TimeUnit.SECONDS.toNanos(5));
            Runtime.getRuntime().halt(1); // a shutdown that hangs
        });
        end.setDaemon(true);
        end.start();
        fleet.clients.parallelStream().forEach(RedissonClient::shutdown);
        System.exit(0);
    }

    /** Clients share the threads that one client has by default: many clients do not make more of them. */
    private Fleet(String address, int n, long lease) throws Exception {
        EventLoopGroup netty = new NioEventLoopGroup(NETTY_THREADS);
        ExecutorService executor = Executors.newFixedThreadPool(THREADS);
        List<Future<RedissonClient>> opening = new ArrayList<>();
        for (int i = 0; i < n; i++) {
            Config config = new Config().setLockWatchdogTimeout(lease).setEventLoopGroup(netty).setExecutor(executor);
            config.useSingleServer().setAddress("redis://" + address).setConnectionMinimumIdleSize(Math.max(1, IDLE / n));
            opening.add(threads.submit(() -> Redisson.create(config)));
        }
        for (Future<RedissonClient> client : opening) {
            clients.add(client.get());
        }
    }

    private String answer(String[] job) {
        try {
            long[] n = new long[job.length];
            for (int i = 1; i < n.length; i++) {
                n[i] = Long.parseLong(job[i]);
            }
            return switch (job[0]) {
                case "crowd" -> crowd((int) n[1], (int) n[2], n[3], n[4], n[5]);
                case "handoff" -> handoff(n[1], n[2], n[3]);
                case "woken" -> woken(n[1], n[2], n[3]);
                default -> throw new IllegalArgumentException("job " + job[0]);
            };
        } catch (Throwable e) {
            return "{\"error\":\"" + e.toString().replaceAll("[^ -~]|[\"\\\\]", " ") + "\"}";
        }
    }

    private String crowd(int workers, int names, long section, long took, long patience) throws Exception {
        long cpu = cpu(), end = System.nanoTime() + took;
        List<Worker> all = new ArrayList<>();
        List<Future<?>> running = new ArrayList<>();
        CountDownLatch done = new CountDownLatch(clients.size() * workers);
        for (int i = 0; i < clients.size() * workers; i++) {
            String name = names == 1 ? "bench" : "bench:" + i % names;
            Worker worker = new Worker(clients.get(i / workers).getLock(name), section, end, done);
            all.add(worker);
            running.add(threads.submit(worker));
        }
        boolean late = !done.await(took + patience, TimeUnit.NANOSECONDS);
        if (late) {
            for (int i = 0; i < all.size(); i++) {
                all.get(i).late = true;
                running.get(i).cancel(true);
            }
            if (!done.await(10, TimeUnit.SECONDS)) {
                throw new IllegalStateException("workers do not stop");
            }
        }
        List<Long> waits = new ArrayList<>();
        List<Integer> sections = new ArrayList<>();
        int sum = 0, stuck = 0;
        for (Worker worker : all) {
            if (worker.failure != null) {
                throw worker.failure;
            }
            waits.addAll(worker.waits);
            sections.add(worker.sections);
            sum += worker.all;
            stuck += worker.stuck ? 1 : 0;
        }
        return String.format("{\"sections\":%s,\"all\":%d,\"stuck\":%d,\"p50\":%d,\"p99\":%d,\"longest\":%d,\"cpu\":%d}",
            sections, sum, stuck, quantile(waits, 0.5), quantile(waits, 0.99), quantile(waits, 1), cpu() - cpu);
    }

    /** Locks as often as it can until the end, and counts as the worker of crowd.go does. */
    private static final class Worker implements Runnable {
        private final RLock lock;
        private final long section, end;
        private final CountDownLatch done;

        private final List<Long> waits = new ArrayList<>();
        private int sections, all;
        private boolean stuck;
        private Exception failure;
        private volatile boolean late; // it is told to give up

        Worker(RLock lock, long section, long end, CountDownLatch done) {
            this.lock = lock;
            this.section = section;
            this.end = end;
            this.done = done;
        }

        @Override
        public void run() {
            long asked = System.nanoTime();
            boolean waiting = false;
            try {
                for (; asked < end; asked = System.nanoTime()) {
                    waiting = true;
                    lock.lockInterruptibly();
                    waiting = false;
                    waits.add(System.nanoTime() - asked);
                    sleep(section);
                    lock.unlock();
                    all++;
                    if (System.nanoTime() < end) {
                        sections++;
                    }
                }
            } catch (Exception e) {
                stuck = late;
                failure = late ? null : e;
                if (waiting) {
                    waits.add(System.nanoTime() - asked);
                }
            } finally {
                done.countDown();
            }
        }
    }

    private String handoff(long pause, long took, long patience) throws Exception {
        long end = System.nanoTime() + took;
        List<Long> waits = new ArrayList<>();
        int stuck = 0;
        for (int i = 0; System.nanoTime() < end; i++) {
            RLock held = clients.get(i % 2).getLock("bench"), awaited = clients.get((i + 1) % 2).getLock("bench");
            held.lockInterruptibly();
            Future<Long> other = threads.submit(() -> {
                awaited.lockInterruptibly();
                long at = System.nanoTime();
                awaited.unlock();
                return at;
            });
            sleep(pause + ThreadLocalRandom.current().nextLong(TimeUnit.MILLISECONDS.toNanos(10)));
            long called = System.nanoTime();
            held.unlock();
            try {
                waits.add(other.get(patience, TimeUnit.NANOSECONDS) - called);
            } catch (TimeoutException e) {
                other.cancel(true);
                waits.add(System.nanoTime() - called);
                stuck++;
            }
        }
        return String.format("{\"waits\":%s,\"stuck\":%d}", waits, stuck);
    }

    private String woken(long pause, long took, long patience) throws Exception {
        long end = System.nanoTime() + took;
        List<Long> waits = new ArrayList<>();
        int stuck = 0;
        while (System.nanoTime() < end) {
            RLock writer = clients.get(0).getReadWriteLock("bench").writeLock();
            writer.lockInterruptibly();
            CountDownLatch shared = new CountDownLatch(clients.size() - 1), all = new CountDownLatch(1);
            List<Future<Long>> readers = new ArrayList<>();
            for (RedissonClient client : clients.subList(1, clients.size())) {
                RLock reader = client.getReadWriteLock("bench").readLock();
                readers.add(threads.submit(() -> {
                    reader.lockInterruptibly();
                    long at = System.nanoTime();
                    shared.countDown();
                    try {
                        all.await();
                    } finally {
                        reader.unlock();
                    }
                    return at;
                }));
            }
            sleep(pause + ThreadLocalRandom.current().nextLong(TimeUnit.MILLISECONDS.toNanos(10)));
            long called = System.nanoTime(), last = called;
            writer.unlock();
            boolean served = shared.await(patience, TimeUnit.NANOSECONDS);
            if (!served) {
                last = System.nanoTime();
                stuck++;
                for (Future<Long> reader : readers) {
                    reader.cancel(true); // those that read are interrupted too, and unlock
                }
                sleep(TimeUnit.MILLISECONDS.toNanos(100));
            }
            all.countDown();
            for (Future<Long> reader : readers) {
                if (served) {
                    last = Math.max(last, reader.get());
                }
            }
            waits.add(last - called);
        }
        return String.format("{\"waits\":%s,\"stuck\":%d}", waits, stuck);
    }

    private static void sleep(long nanos) {
        if (nanos <= 0) {
            return;
        }
        try {
            TimeUnit.NANOSECONDS.sleep(nanos);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt(); // the lock that is held is still unlocked
        }
    }

    private static long quantile(List<Long> of, double q) {
        if (of.isEmpty()) {
            return 0;
        }
        Collections.sort(of);
        return of.get(Math.max(0, (int) Math.ceil(q * of.size()) - 1));
    }

    private static long cpu() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }
}
